"""Which replica works, and which installation manages a namespace, whatever the clocks of others say."""

from dataclasses import replace
from typing import Any

import pytest
from operator_builders import CONFIG, NOW

from paceline_operator.cluster.leadership import LIFETIMES_KEPT, Leadership, Pulse
from paceline_operator.cluster.territory import Installation, Territory, manager_of
from paceline_operator.errors import ApiError, GoneError

LIFETIME_S = 20
LONG_AGO, FAR_AHEAD = "1999-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00"


class FakeCluster:
    """Peering objects, and the merge patches that were sent."""

    def __init__(self) -> None:
        self.peers: dict[str, Any] = {}
        self.peerings: dict[str, list[dict[str, Any]]] = {}
        self.exists = True

    async def merge(self, change: dict[str, Any], *place: Any) -> dict[str, Any]:
        if not self.exists:
            raise GoneError(404, "gone")
        self.peers = {name: entry for name, entry in (self.peers | change["status"]).items() if entry}
        return {"status": self.peers}

    async def get(self, *place: Any) -> dict[str, Any]:
        if not self.exists:
            raise GoneError(404, "gone")
        return {"status": self.peers}

    async def create(self, document: dict[str, Any], kind: Any) -> None:
        self.exists = True

    async def list(self, kind: Any, namespace: str | None) -> list[dict[str, Any]]:
        if kind.plural not in self.peerings:
            raise ApiError(403, "not yours")
        return self.peerings[kind.plural]


class Replica:
    """One replica with a clock of its own, which runs evenly and shows any time of day."""

    def __init__(self, name: str, priority: int, time_of_day=NOW) -> None:
        self.now_s, self.cluster = 0.0, FakeCluster()
        config = replace(CONFIG, pod_name=name, peering_lifetime_s=LIFETIME_S)
        clock = lambda: self.now_s  # noqa: E731
        self.leadership = Leadership(self.cluster, config, priority, Pulse(clock), clock, lambda: time_of_day)


def peer(priority: int, lastseen: str = LONG_AGO) -> dict[str, Any]:
    return {"priority": priority, "lifetime": LIFETIME_S, "lastseen": lastseen}


@pytest.mark.parametrize("lastseen", [LONG_AGO, NOW.isoformat(), FAR_AHEAD])
@pytest.mark.parametrize("priority, leads", [(9, False), (2, True)])
async def test_a_replica_of_higher_priority_leads_while_its_entry_changes(lastseen, priority, leads):
    """Whatever time of day the entry names; once it rests for its lifetime it counts no more, and later it is taken out."""
    replica = Replica("me", 5)
    replica.cluster.peers["other"] = peer(priority, lastseen)

    assert await replica.leadership.leads() is leads
    replica.now_s = LIFETIME_S - 1
    replica.cluster.peers["other"] = peer(priority, lastseen + " ")
    assert await replica.leadership.leads() is leads
    replica.now_s += LIFETIME_S - 1
    assert await replica.leadership.leads() is leads
    replica.now_s += 2
    assert await replica.leadership.leads()
    assert set(replica.cluster.peers) == {"me", "other"}
    replica.now_s += LIFETIME_S * LIFETIMES_KEPT
    assert await replica.leadership.leads()
    assert set(replica.cluster.peers) == {"me"}


async def test_a_replica_says_that_it_lives_and_that_it_goes():
    """Several times within its lifetime, and a peering object that was deleted is made again."""
    replica = Replica("me", 5)
    said = set()
    for second in range(LIFETIME_S):
        replica.now_s = float(second)
        replica.cluster.peers.pop("me", None)
        await replica.leadership.leads()
        said |= {second} & {second if "me" in replica.cluster.peers else -1}
    replica.cluster.exists, replica.now_s = False, 2.0 * LIFETIME_S
    assert await replica.leadership.leads()

    assert len(said) == 3
    assert replica.cluster.peers["me"]["priority"] == 5
    await replica.leadership.resign()
    assert replica.cluster.peers == {}


WIDE, OLDER_WIDE = Installation("", "wide", "2"), Installation("", "older", "1")
OWN, OLDER_OWN = Installation("team", "own", "4"), Installation("team", "first", "3")


@pytest.mark.parametrize(
    "installations, manager",
    [
        ([], None),
        ([WIDE], WIDE),
        ([WIDE, OWN], OWN),
        ([WIDE, OLDER_WIDE], OLDER_WIDE),
        ([OWN, OLDER_OWN, OLDER_WIDE], OLDER_OWN),
        ([Installation("elsewhere", "own", "0"), WIDE], WIDE),
        ([Installation("", "b", "1"), Installation("", "a", "1")], Installation("", "a", "1")),
    ],
)
def test_one_installation_manages_a_namespace(installations, manager):
    """The one that is for it alone, else the cluster-wide one; the oldest of several; all agree, whatever the order."""
    assert manager_of("team", installations) == manager
    assert manager_of("team", installations[::-1]) == manager


class Land:
    """A territory and the peerings that it sees."""

    def __init__(self, namespace: str, *living: Installation) -> None:
        self.now_s, self.cluster, self._beat = 0.0, FakeCluster(), 0
        config = replace(CONFIG, watch_namespace=namespace, peering_name="me", takeover_s=60.0)
        self.territory = Territory(config, self.cluster, lambda: self.now_s)
        self.living = [Installation(namespace, "me", "5"), *living]

    async def at(self, now_s: float, namespace: str, named: str) -> bool:
        """What it says at that time, others alive."""
        self.now_s, self._beat = now_s, self._beat + 1
        found: dict[str, Any] = {"kopfpeerings": [], "clusterkopfpeerings": []}
        for one in self.living:
            metadata = {"name": one.name, "creationTimestamp": one.made_at}
            metadata |= {"namespace": one.namespace} if one.namespace else {}
            entry = {"status": {"pod": peer(1, str(self._beat))}}
            found["kopfpeerings" if one.namespace else "clusterkopfpeerings"].append({"metadata": metadata, **entry})
        self.cluster.peerings = found
        await self.territory.look()
        return self.territory.manages(namespace, named)


async def test_a_cluster_wide_one_keeps_off_where_another_is_at_home():
    """And takes over a while after that one is gone; what nobody manages yet it manages at once."""
    land = Land("", OWN)
    assert await land.at(0, "other", "")
    assert not await land.at(100, "team", "me")
    assert not await land.at(200, "team", "team/own")
    land.living = []

    assert not await land.at(259, "team", "team/own")
    assert await land.at(260, "team", "team/own")
    assert await land.at(261, "team", "me")


async def test_one_that_is_at_home_waits_until_the_other_has_noticed():
    """It cannot see cluster-wide ones, and takes their models over after a while; new ones it manages at once."""
    land = Land("team")

    assert await land.at(0, "team", "")
    assert not await land.at(59, "team", "wide")
    assert await land.at(60, "team", "wide")


async def test_the_younger_of_two_cluster_wide_ones_keeps_off():
    """Where the peerings of namespaces may not be listed it goes by what it may see."""
    land = Land("", WIDE)
    assert not await land.at(0, "team", "")
    del land.cluster.peerings["kopfpeerings"]
    await land.territory.look()

    assert not land.territory.manages("team", "")
