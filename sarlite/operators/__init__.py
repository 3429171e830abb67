"""What is computed over edges: operators, and the table that finds one for a message and a reducer."""
