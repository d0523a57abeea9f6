"""What ``scripts/bench`` is made of: shapes, engines in processes of their own, a driver, tables and plots."""
