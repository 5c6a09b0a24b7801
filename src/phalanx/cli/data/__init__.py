"""``phalanx data``: what files of data hold, and how they become others."""
