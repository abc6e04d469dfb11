"""Words that a full stop belongs to, and words that begin sentences, by language.

An abbreviation never ends a sentence if something follows, except those of `LAST` before a word
that begins sentences: `etc. The` but `etc. Smith`. Single letters need no entry (`J. Smith`,
`z. B.`), nor do letters with stops between them (`U.S.`, `Ph.D.`).

The lists are short on purpose. They have what is frequent in edited text and is hardly ever a word
of its own at the end of a sentence.
"""

from functools import lru_cache
from typing import NamedTuple


class Abbreviations(NamedTuple):
    """What is known of a language."""

    all: frozenset[str]
    """In lower case. A capital letter at the beginning may be added."""
    capital: frozenset[str]
    """Abbreviations with a capital letter that are words without: `Sun.`"""
    last: frozenset[str]
    """Those that may end a sentence, in lower case."""
    before_digit: frozenset[str]
    """Those that are abbreviations only before a number, in lower case: `No. 5`"""
    starters: frozenset[str]
    """Words that begin sentences, and that no name or term begins with, in lower case."""


@lru_cache(maxsize=64)
def of(language: str) -> Abbreviations:
    """The abbreviations of a language; those of most languages where it has no list."""
    code = ALIASES.get(language, language)
    return Abbreviations(
        frozenset(f"{EVERYWHERE} {ALL.get(code, '')} {LAST.get(code, '')}".split()),
        frozenset(CAPITAL.get(code, "").split()),
        frozenset(f"etc {LAST.get(code, '')}".split()),
        frozenset(BEFORE_DIGIT.get(code, "").split()),
        frozenset(STARTERS.get(code, "").split()),
    )


def is_known(language: str) -> bool:
    """Whether there is a list for this language."""
    return ALIASES.get(language, language) in STARTERS


ALIASES = {"nb": "no", "nn": "no"}
ORDINALS = frozenset("cs da de et fi hr hu is nb nn no sk sl sr".split())
"""Languages that write ordinals with a full stop: `1. Januar`."""

EVERYWHERE = "dr prof st mr mrs ms etc cf vs vol p pp fig ed co jr sr nr tel approx ca"

ALL = {
    "en": (
        "al apr ass't attn aug ave blvd bros capt ch cmdr col conf corp dec dept eq eqs est ex ext "
        "feb figs ft gen gov hon hwy inc jan jul jun lb lbs lt ltd maj messrs mt no nos nov oct oz "
        "ps ref refs rep reps resp rev sec sen sens sep sept sgt tues thur thurs viz yr yrs eg ie"
    ),
    "de": (
        "abb abs abt allg anm art aufl bd bde bes bez bspw bzgl bzw chr dipl ders desgl dgl ebd "
        "ehem eigtl einschl engl entspr ev evtl exkl frhr frl fr frz gebr gegr geb gem gest ggf "
        "griech hl hr hrn hrsg ing inkl insb insbes jan feb apr aug sept okt nov dez jh kap kath "
        "lat lfd mag max mind mio mrd mme nördl östl pfd röm sog str südl tsd u.a vgl vs westl "
        "wiss z.b zit zzgl abzgl"
    ),
    "fr": (
        "m mm mme mmes mlle mlles me pr ste sts av boul chap éd env ex hab janv févr avr juil sept "
        "oct nov déc ltée n° nos op réf sq suiv sté suppl tél tom trad art gén col cap lieut"
    ),
    "es": (
        "sr sra sres sras srta dra drs profa d da dña sta sto ud uds vd vds av avda cap cía dpto "
        "depto ej excmo excma gral hnos ilmo ilma ing izq lic máx mín núm nº pág págs ref s.a sig "
        "teléf tte vols art aprox aprox"
    ),
    "it": (
        "sig sigg sig.ra sig.na dott dott.ssa prof.ssa avv ing arch geom rag on sen mons art artt "
        "cap cfr cit es figg gen n nr nro num pag pagg par sec seg segg ss tab trad voll egr spett "
        "s.p.a s.r.l a.c d.c"
    ),
    "pt": (
        "sr sra srs sras srta dra drs profa eng engº av cap cia ex exmo exma gov ltda máx mín nº "
        "núm obs pág págs ref séc sta sto trav vols art aprox dec v.ex"
    ),
    "nl": (
        "dhr mevr mw mej drs ir ing ds blz bijv bv evt excl incl geb gem jl kap max min nrs ong "
        "pag par plm resp t.a.v vgl vnl zgn zog art afb afd jan feb mrt apr aug sept okt nov dec "
        "mgr o.a d.w.z m.a.w a.u.b str"
    ),
    "no": (
        "adv avd bl bl.a dvs eks ekskl ev evt f.eks forts frk frkn fr fru gj hhv hr iflg inkl jan "
        "feb apr aug sept okt nov des jf kap kgl kl kr maks mht mill mnd mrd nr pga pkt pst red "
        "sml stk tlf ved vedr årg sogn el"
    ),
    "sv": (
        "bl.a ca dvs d.v.s ev evt exkl f.d frk hr inkl jan feb apr aug sept okt nov dec jfr kap kl "
        "kr max min mkt nr pga red resp s.k sid t.ex tfn t.o.m ung uppl"
    ),
    "da": (
        "adv afd bl bl.a dvs eks ekskl evt f.eks fhv frk fr gl hhv hr iflg inkl jan feb apr aug "
        "sept okt nov dec jf kap kgl kl kr maks mht mia mio nr pga pkt red sml skt stk tlf vedr "
        "årg"
    ),
    "ru": (
        "акад англ бул вв греч гр долл доц им исп итал кв коп корп лат макс мин млн млрд напр нем "
        "пер пл просп проф рис руб рус св см ср стр табл тел тов трлн тыс ул франц г-н г-жа гл "
        "ст гос полк ген"
    ),
}
"""Abbreviations that hardly ever end a sentence."""

LAST = {
    "en": "inc co ltd corp jr sr al ave st p.m a.m",
    "de": "usw usf uvm u.a o.ä u.ä co dgl",
    "fr": "etc",
    "es": "etc cía uds vds",
    "it": "ecc",
    "pt": "ltda",
    "nl": "enz e.d e.a",
    "no": "osv mv mfl mm m.m m.fl o.l",
    "sv": "osv mm m.m m.fl",
    "da": "osv mv mm m.m m.fl",
    "ru": "гг др пр руб коп млн млрд тыс",
}
"""Abbreviations that may end a sentence."""

CAPITAL = {
    "en": (
        "Ariz Calif Col Colo Conn Del Fla Fri Ga Ill Ind Kan Ky La Mass Md Mich Minn Mo Mon Mont "
        "Okla Ont Ore Pa Que Sat Spec Sun Tenn Tex Thu Tue Va Vt Wash Wed Wis Wyo Mob Fax Ph Para"
    ),
    "de": "Mo Fa Str Tel Art Nr",
    "nl": "Mr Jhr",
}

BEFORE_DIGIT = {"en": "no nos ex", "es": "no", "it": "no"}

STARTERS = {
    "en": (
        "a after all also although an and are as at because before both but can could did do does "
        "each every for from had has have he her here his how however i if in is it its let many "
        "most my no not now on one or our please she should since so some thank thanks that the "
        "their then there these they this those was we were what when where which while who why "
        "will with would yes you your"
    ),
    "de": (
        "aber als am an auch auf aus bei da dabei damit dann das dem den denn der des dies diese "
        "dieser dieses die doch durch ein eine einem einen einer er es für hier ich ihr ihre im in "
        "ist jetzt man mein mit nach nicht noch nun nur ob obwohl oder sein seine seit sie so "
        "sondern über um und unter vom von vor war was weil wenn wer wie wir wo während zu zum zur"
    ),
    "fr": (
        "au aux avec c'est ce cela ces cet cette comme dans depuis des elle elles en et il ils "
        "je la le les leur mais ne nous on ou où par pour puis quand que qui sa sans ses si "
        "son sous sur un une vous"
    ),
    "es": (
        "a al aunque como con cuando de del desde donde el él ella ellas ellos en entonces era es "
        "esta este esto estos fue hay la las lo los más me mi nada ni no nos o para pero por "
        "porque pues que se según si sin sobre su sus también tras un una y ya yo"
    ),
    "it": (
        "a al alla anche che chi come con così da dal del della di dopo e egli ella era fu gli i "
        "il in io la le lei lo loro lui ma mentre nel nella noi non per perché poi quando questa "
        "questo se si solo sono su tra tutti un una è"
    ),
    "pt": (
        "a ao aos as com como da das de depois do dos e é ela elas ele eles em era essa esse esta "
        "este eu foi há já mas não na nas no nos nós o os ou para por porque quando que se sem seu "
        "sua também um uma"
    ),
    "nl": (
        "aan als bij daar daarom dan dat de deze die dit door een en er ging had heeft het hier "
        "hij hoe ik in is je maar met na naar niet nog nu of om ook op over toen tot u uit van "
        "voor waar wanneer want was wat we wie wij ze zij zijn zo"
    ),
    "no": (
        "alle at av da de dei den der dere derfor det dette dei disse du eg ein ei en er et etter "
        "for fra han hans hennes her hun hva hvem hvis hvor hvordan i ikke jeg med men mens nå "
        "når og også om på siden som så til ved vi var være"
    ),
    "sv": (
        "alla att av de den denna det detta du där då efter eller en ett från för han hans hennes "
        "hon här hur i inte jag med men mot när nu och om på sedan som så till var vi vid"
    ),
    "da": (
        "af alle at da de den denne der derfor det dette disse du efter eller en er et for fra han "
        "hans hendes her hun hvad hvem hvis hvor hvordan i ikke jeg med men mens nu når og også om "
        "på siden som så til var ved vi"
    ),
    "ru": (
        "а без был была было были в во вот все всё вы где да для до ее её если еще ещё за здесь и "
        "из или им их к как когда кто мой мы на наш не нет но ну о он она они оно от по под после "
        "потом при с свои со так также там тогда только ты у уже хотя через что чтобы эта эти это "
        "этот я"
    ),
}
