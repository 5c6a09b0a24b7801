"""How it starts: launchers behind one small interface, and the controller that uses them."""
