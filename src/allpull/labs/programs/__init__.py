"""Programs that the ranks of labs run: read them, and change them; none of them needs allpull."""
