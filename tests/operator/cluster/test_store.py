"""The memory of the cluster, who leads, and how a silent watch is noticed."""

from operator_builders import UID, make_job, make_pod, make_resource

from paceline_operator.cluster.kinds import BY_NAME, POD
from paceline_operator.cluster.store import MAX_GONE, Key, Store, slim
from paceline_operator.cluster.watchdog import PATIENCE_S, Watchdog

KEY = Key("ml", "demo")


def pod(name="a", version=1, uid="u"):
    found = make_pod(name)
    found["metadata"] |= {"namespace": "ml", "resourceVersion": str(version), "uid": uid}
    return found


def pods(store):
    """Name -> uid of the pods that are known."""
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in store.known(POD)}


def test_objects_are_kept_under_the_model_of_their_label():
    """A pod is found under its model, whoever made it."""
    store = Store()

    assert store.put(make_resource()) == KEY
    assert store.put(pod()) == KEY
    assert pods(store) == {"a": "u"}
    assert store.models().keys() == {KEY}


def test_observed_is_what_belongs_to_a_uid():
    """A model that was deleted and made again has its name, and none of its children."""
    store, job = Store(), make_job("one")
    job["metadata"] |= {"namespace": "ml", "uid": "j"}
    store.put(job)

    assert set(store.observed(KEY, UID).children) == {("Job", "one")}
    assert store.observed(KEY, "another").children == {}


def test_objects_without_a_model_are_not_kept():
    """Somebody else's objects never get here."""
    stray = pod()
    stray["metadata"]["labels"] = {}

    assert Store().put(stray) is None


def test_an_older_version_does_not_replace_a_newer_one():
    """Our own write's answer may overtake the watch."""
    store = Store()
    for version in (5, 3):
        store.put(pod(version=version))

    assert store.known(POD)[0]["metadata"]["resourceVersion"] == "5"


def test_a_recreated_object_replaces_its_namesake():
    """Another uid is another object, whatever the versions; the late end of the first does not remove the second."""
    store = Store()
    store.put(pod(version=5, uid="old"))
    store.put(pod(version=3, uid="new"))
    store.drop(pod(version=6, uid="old"))

    assert pods(store) == {"a": "new"}


def test_a_fresh_list_removes_what_is_gone():
    """Deletions that happened unseen are made up for, other kinds stay."""
    store = Store()
    for found in (make_resource(), pod("a"), pod("b")):
        store.put(found)
    store.replace(store.known(POD), [pod("b")])

    assert pods(store).keys() == {"b"}
    assert store.model(KEY)


def test_a_slow_list_undoes_no_event():
    """What came while the list was on its way stays, what went does not come back; the watches were faster."""
    store = Store()
    store.put(pod("went", version=1, uid="w"))
    known, listed = store.known(POD), [pod("went", version=1, uid="w")]
    store.drop(pod("went", version=3, uid="w"))
    store.put(pod("came", version=4, uid="c"))
    store.replace(known, listed)

    assert pods(store).keys() == {"came"}


def test_a_slow_answer_revives_no_deleted_object():
    """A watch told of its beginning and its end before our own write was answered; a later version is a life of its own."""
    store = Store()
    store.put(pod(version=2))
    store.drop(pod(version=3))

    assert not store.is_news(pod(version=2))
    store.put(pod(version=2))
    assert pods(store) == {}
    store.put(pod(version=4))
    assert pods(store).keys() == {"a"}


def test_deleted_objects_are_not_remembered_for_ever():
    """A thousand are enough for one answer's time."""
    store = Store()
    for i in range(MAX_GONE + 5):
        store.drop(pod(uid=f"u{i}"))

    assert not store.is_news(pod(uid="u5"))
    assert store.is_news(pod(uid="u4"))


def test_nothing_is_left_of_a_deleted_model():
    """Memory is for what exists."""
    store = Store()
    store.put(make_resource())
    store.put(pod())
    store.drop(pod())
    store.drop(make_resource())

    assert store.models() == {}
    assert pods(store) == {}


def test_observed_is_a_value():
    """What a reconcile reads does not change under it."""
    store, job = Store(), make_job("one")
    job["metadata"] |= {"namespace": "ml", "uid": "j"}
    store.put(job)
    observed = store.observed(KEY, UID)
    store.drop(job)

    assert ("Job", "one") in observed.children


def test_big_and_unused_parts_are_dropped():
    """managedFields only matter for Deployments, a pod's spec never does, a ReplicaSet only tells whose its pods are."""
    found = {**pod(), "spec": {"containers": []}}
    found["metadata"]["managedFields"] = [{}]

    assert "spec" not in slim(found)
    assert set(slim({**found, "kind": "ReplicaSet"})) == {"kind", "metadata"}
    assert "managedFields" not in slim(found)["metadata"]
    assert "managedFields" in slim({**found, "kind": "Deployment"})["metadata"]
    assert set(BY_NAME) >= {"SpeculativeModel", "Pod", "Deployment"}


def test_a_watch_that_never_shows_our_write_is_noticed():
    """After its patience, and only while the write stays unseen."""
    now = [0.0]
    watchdog = Watchdog(lambda: now[0])
    watchdog.expect(pod(version=7))
    now[0] = PATIENCE_S - 1
    early = watchdog.overdue()
    now[0] = PATIENCE_S + 1

    assert (early, watchdog.overdue()) == ([], ["Pod/a"])
    watchdog.heard(pod(version=6))
    assert watchdog.overdue() == ["Pod/a"]
    watchdog.heard(pod(version=8))
    assert watchdog.overdue() == []


def test_a_busy_object_does_not_look_overdue():
    """Writing again while the first write is on its way does not restart the patience, and seeing it ends it."""
    now = [0.0]
    watchdog = Watchdog(lambda: now[0])
    watchdog.expect(pod(version=7))
    watchdog.expect(pod(version=9))
    watchdog.heard(pod(version=7))
    now[0] = PATIENCE_S + 1

    assert watchdog.overdue() == []
