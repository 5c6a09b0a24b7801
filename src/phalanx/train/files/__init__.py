"""The files that an unchanged script writes: the first worker's are real, others are kept apart."""
