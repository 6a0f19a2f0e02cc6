"""The what-if curve of a replay: what each rule would deny at other limits than its own. This package is internal."""
