"""What we learned: tables, figures and the report, made from the files of a run."""
