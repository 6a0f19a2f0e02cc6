"""This package beside its peers, measured in one run on one machine: `make bench`."""
