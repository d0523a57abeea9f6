"""Check an artifact against its checkpoint: validate that it computes the same, evaluate the loss by rounding.

``oracle.py`` runs the checkpoint eagerly, ``random_program.py`` a session, ``validate.py`` and ``evaluate.py`` compare
them. May import every room of the export but cli and pages, and the runtime; knows nothing of commands and consoles.
"""
