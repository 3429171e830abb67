"""What is computed over the edges: operators, a block of edges at a time, and the table that finds one for a message and a reducer."""
