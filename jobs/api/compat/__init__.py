"""Elmwright's models under the names of other libraries, so that their users change one line.

    elmwright.compat.allennlp   Elmo, ElmoEmbedder and batch_to_ids, in AllenNLP's signatures
    elmwright.compat.spacy      a spaCy component, `nlp.add_pipe("elmwright")`
    elmwright.compat.flair      word embeddings for flair

Each module is used alone. spaCy and flair are optional extras, which only their module imports. It
may import every room of `elmwright.jobs`, and nothing imports it. Its modules import each other
relatively, because this folder is also below that of the package `elmwright.jobs`.
"""
