"""The soft rank: `ranks` has the functions, the other modules the ways to compute them.

`calibrant.functional.soft_rank` is the function; import modules of this package with
``from calibrant.functional.soft_rank import ranks``.
"""
