"""Who is trained and how hard: recipes, advantages, weight streams, denominators. Knows numpy, never torch."""

from tracemask.recipe.model import Recipe

__all__ = ["Recipe"]
