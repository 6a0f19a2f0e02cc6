"""The words of a rules file, one file each; related words share a file.

A new word is a file here and one line in its table: `words.rule` has the words of a rule, `config.file` those of a
file.
"""
