"""A small sentencepiece model, and text in its language."""

from functools import cache

from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION, train_sentencepiece
from elmwright.pipeline.config import Pieces

TEXT = [
    "나는 오늘 학교에 갔다.",
    "그는 어제 학교에서 책을 읽었다.",
    "우리는 내일 도서관에 갈 것이다.",
    "학교 옆에 작은 도서관이 있다.",
    "오늘은 날씨가 좋다, 그래서 산책을 했다.",
    "그 책은 정말 재미있었다.",
]
KOREAN = Tokenisation("sentencepiece", VERSION, language="ko")


@cache
def korean_pieces() -> bytes:
    """A sentencepiece model that knows these sentences."""
    return train_sentencepiece(iter(TEXT * 3), Pieces(size=70), "ko")
