"""``phalanx data``: show what data files contain, and convert them."""
