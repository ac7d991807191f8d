"""Is one side of runs different from another, by how much, and how sure is that?"""
