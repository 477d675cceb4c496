"""Who calls, what they may do, how much at once, what they used, and who changed that."""
