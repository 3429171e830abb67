"""The historical embedding cache: rows of other ranks' nodes from earlier steps, which ranks push to each other (DistGNN-MB paper,
section 3.2).
"""
