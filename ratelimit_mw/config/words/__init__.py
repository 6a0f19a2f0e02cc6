"""The words of a rules file. Each module defines one word or a few related words.

A new word is a module here and one line in a table: `words.rule` holds the words of a rule, `config.file` those of a
file. The guide is docs/add-a-word.md.
"""
