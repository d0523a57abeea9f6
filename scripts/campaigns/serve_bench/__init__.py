"""Measurements of ``hybridge serve``, each of a server that runs as its command."""
