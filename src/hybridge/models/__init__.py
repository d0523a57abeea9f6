"""Any model that a person names, as an artifact: what is none is exported once, and kept in the user's cache.

The room above both halves: a command of ``runtime`` is given ``find_artifact``, which may export. ``find.py`` goes from a name
to an artifact, ``identity.py`` recognizes a checkpoint by its bytes, ``kept.py`` is the cache, ``progress.py`` knows how long
an export takes, ``describe.py`` is ``hybridge inspect`` of what was not exported, ``cli.py`` has the command line.
"""
