"""Modules of ``scripts/bench``: shapes, engines in processes of their own, a driver, tables and plots."""
