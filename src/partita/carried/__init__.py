"""Plans made from plans: like another one, or edited by hand."""
