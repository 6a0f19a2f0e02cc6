"""The result of a replay as one HTML file that works offline. This package is internal."""
