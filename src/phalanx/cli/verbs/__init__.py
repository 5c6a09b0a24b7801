"""One file per verb that trains or concerns runs."""
