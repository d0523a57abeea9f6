"""The math of each recurrence: a fast form, and its naive twin beside it."""
