"""What we learned: tables, figures, the verdict, and the bundle that lets others run it again."""
