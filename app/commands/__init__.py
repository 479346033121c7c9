"""One function per command that needs more than one statement; none commits."""
