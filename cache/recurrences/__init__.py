"""One file for each recurrence: its math, its inputs, a naive and a fast form, and the operations that layers call."""
