from itertools import product

from unidle.ledger.attempt import SliceFacts, classify
from unidle.ledger.taxonomy import GROUP_OF, GROUPS, PRECEDENCE


def test_every_combination_of_facts_has_the_leaf_of_the_first_group_that_has_one():
    choices = [[True, False]]
    for group in PRECEDENCE[1:]:
        leaves = list(GROUPS[group])
        few = (
            leaves if len(leaves) < 7 else [*leaves[:4], *leaves[-3:]]
        )  # the answer does not depend on how many
        choices.append(few if group == "free" else [None, *few])
    count = 0
    for covered, *facts in product(*choices):
        leaf = classify(SliceFacts(covered, *facts))
        first = next(f for f in facts if f) if covered else "unseen"
        assert leaf == first and leaf in GROUP_OF
        count += 1
    assert count == 2 * 8 * 7 * 3 * 8 * 8 * 8 * 7


def test_the_facts_are_in_the_order_of_precedence():
    assert tuple(SliceFacts.__dataclass_fields__) == ("covered", *PRECEDENCE[1:])


def test_a_slice_of_which_nothing_is_known_is_free():
    assert classify(SliceFacts()) == "no_demand"
