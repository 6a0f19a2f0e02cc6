"""Reads the access logs of servers and proxies: find the format, read the lines, and put them in order of time.

Every text in a log may have been written by a client. No line raises an exception: an unreadable one is counted.
"""
