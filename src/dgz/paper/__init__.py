"""The paper, item by item: what each table and figure shows, what was published, and the runs that make ours."""

from dgz.paper.spec import Claim, Panel, Quoted, Row, Spec, comparison_spec, item_names, load_spec, paper_items
from dgz.paper.store import Block, Item, Store

__all__ = [
    "Block",
    "Claim",
    "Item",
    "Panel",
    "Quoted",
    "Row",
    "Spec",
    "Store",
    "comparison_spec",
    "item_names",
    "load_spec",
    "paper_items",
]
