"""What the bandwidth that a row of the sweep notes says of how it was run."""

from __future__ import annotations

from benchmarks.fidelity.nanotron import Ran, ran

from partita.compiler.hardware.links import CollectiveCost, Link
from partita.compiler.hardware.profile import load_hardware

PROFILE = load_hardware("h100-efa")


def noted(within: str, zero: str = "1") -> Ran:
    return ran({"intra_node_all_reduce_busbw_gbps": within, "zero_stage": zero})


def rates(link: Link) -> list[float]:
    def of(cost: CollectiveCost) -> list[float]:
        return [
            cost.bytes_per_s,
            *(rate for other in cost.others for rate in of(other)),
        ]

    return [rate for cost in link.costs.values() for rate in of(cost)]


def test_hosts_compared_collectives_where_bandwidths_say_so() -> None:
    assert noted("458").system.check_s(8) == 0.0
    assert noted("425").system.check_s(8) == 1.57e-3
    assert noted("45.4").system.check_s(8) == 0.0  # there it says something else


def test_links_within_a_node_carry_what_was_measured() -> None:
    assert noted("425").hardware == "h100-efa"
    assert noted("").hardware == "h100-efa"  # memory ran out: nothing was measured
    between, within = load_hardware(noted("45.4").hardware).links
    assert between == PROFILE.links[0]
    assert set(rates(within)) == {45.4e9}
    assert min(rates(PROFILE.links[1])) > 100e9
    other = load_hardware(noted("46").hardware)
    assert set(rates(other.links[1])) == {46e9}


def test_without_nvlink_tensors_were_announced_by_messages_looked_for() -> None:
    # two tensors forward and one back, two messages each, a tenth of a second for each
    assert noted("45.4").system.announced_s == (0.4, 0.2)
    assert noted("425").system.announced_s == (0.0, 0.0)


def test_sums_pass_in_the_backward_without_zero() -> None:
    for within in ("458", "45.4"):
        assert noted(within, zero="0").system.sums_in_backward
        assert not noted(within, zero="1").system.sums_in_backward
