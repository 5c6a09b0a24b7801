"""Never wrong in silence: what would train something else is made right, or refused."""
