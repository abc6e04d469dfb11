"""The rules that find paragraphs, sentences and Penn style words, by version and language.

Takes clean text. Hands on sentences, and the words of chunks. May import nothing else of ours.
"""
