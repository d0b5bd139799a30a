//! Leases that a client must not use, and texts that are no leases.

use std::time::Duration;

use quorlock::{AcquireError, Client, Lease, LeaseError, LeaseTextError, LockOptions, Outcome};

use crate::common::{UNEXTENDED, eventually, five, get, no_key_is_left, unguarded};
use crate::{LONG, builder, client, key_is, lease_error, lease_on_all, long, sent};

/// Calls `attach`, `attach_fenced` and `extend_lease`. Returns their errors, and checks that nothing was sent.
async fn refusals(client: &Client, lease: &Lease) -> Vec<LeaseError> {
    let before = sent(client);
    let errors = vec![
        lease_error(client.attach(lease).await.unwrap_err()),
        lease_error(client.attach_fenced(lease).await.unwrap_err()),
        client.extend_lease(lease).await.unwrap_err(),
    ];
    assert_eq!(sent(client), before, "nothing is sent");
    errors
}

#[tokio::test]
async fn a_lease_of_another_configuration_is_refused_and_nothing_is_sent() {
    let Some(nodes) = five() else { return };
    let ours = client(&nodes).await;
    let lease = lease_on_all(&nodes, ours.acquire("k").options(long()).await.unwrap()).await;
    let value = get(&nodes[0], "k").unwrap();
    let urls = nodes.urls();
    let (mut swapped, mut database) = (urls.clone(), urls.clone());
    swapped.swap(0, 4);
    database[3].push_str("?db=1");
    for (what, other, says) in [
        ("prefix", builder(&nodes).key_prefix("p:"), "the key prefix"),
        ("quorum", builder(&nodes).quorum(4), "needs 4 of 5"),
        ("fewer nodes", builder(&nodes[..3]), "needs 2 of 3"),
        ("order", unguarded().nodes(&swapped), "order"),
        ("database", unguarded().nodes(&database), "databases"),
    ] {
        let other = other.build().unwrap();
        let mut errors = refusals(&other, &lease).await;
        errors.push(other.release_lease(&lease).await.unwrap_err());
        for error in errors {
            let is_other = matches!(error, LeaseError::OtherCluster { .. });
            assert!(is_other && error.to_string().contains(says), "{what}: {error}");
        }
        assert_eq!(sent(&other), 0, "{what}");
    }
    assert!(key_is(&nodes, "k", Some(&value)));
    let same = client(&nodes).await;
    assert!(same.release_lease(&lease).await.unwrap().is_released());
}

#[tokio::test]
async fn a_lease_past_its_end_is_refused_and_nothing_is_sent() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes).await;
    let ttl = Duration::from_secs(1);
    let short = UNEXTENDED.ttl(ttl).node_timeout(ttl / 4);
    let lease = client.acquire("k").options(short).await.unwrap().detach().await.unwrap();
    eventually("the lease is over", || lease.remaining().is_zero()).await;
    let before = sent(&client);
    for error in [
        lease_error(client.attach(&lease).await.unwrap_err()),
        client.extend_lease(&lease).await.unwrap_err(),
    ] {
        assert!(matches!(error, LeaseError::Over { .. }), "{error}");
    }
    assert_eq!(sent(&client), before);
    let released = client.release_lease(&lease).await.unwrap();
    assert_ne!(released.outcome, Outcome::Released, "the lock was no longer held");
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_released_or_emptied_lock_is_over_and_the_next_holder_undisturbed() {
    let Some(nodes) = five() else { return };
    let (ours, other) = (client(&nodes).await, client(&nodes).await);
    let lease = lease_on_all(&nodes, ours.acquire("k").options(long()).await.unwrap()).await;
    assert!(other.release_lease(&lease).await.unwrap().is_released());
    let error = ours.attach(&lease).await.unwrap_err();
    assert!(matches!(error, AcquireError::LeaseOver(_)), "{error}");
    assert!(error.to_string().contains("the lease is over"), "{error}");
    no_key_is_left(&nodes).await;

    let named = LockOptions::new().owner("next");
    let next = other.acquire("k").options(long().owner("next").wait(LONG)).await.unwrap();
    eventually("all nodes have given their votes", || next.votes() == 5).await;
    let error = ours.attach(&lease).options(named).await.unwrap_err();
    assert!(error.is_contended() && error.to_string().contains("next"), "{error}");
    let lost = ours.extend_lease(&lease).await.unwrap_err();
    assert!(matches!(lost, LeaseError::Lost { .. }) && lost.nodes().len() == 5, "{lost}");
    let _ = ours.release_lease(&lease).await.unwrap();
    next.extend().await.unwrap();
    assert_eq!(next.votes(), 5);
}

#[tokio::test]
async fn a_lease_of_the_wrong_kind_is_refused_and_nothing_is_sent() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes).await;
    let detach = async |guard: quorlock::Guard| guard.detach().await.unwrap();
    let plain = detach(client.acquire("plain").options(long()).await.unwrap()).await;
    let shared = detach(client.acquire_shared("shared").options(long()).await.unwrap()).await;
    let fenced = client.acquire_fenced("fenced").options(long()).await.unwrap();
    let fenced = fenced.detach().await.unwrap();
    let taken = client.take("taken", "v", LONG).await.unwrap().detach().await.unwrap();
    let before = sent(&client);
    for (lease, is_fenced, says) in [
        (&fenced, false, "use attach_fenced"),
        (&plain, true, "use attach"),
        (&shared, true, "use attach"),
        (&taken, false, "cannot be attached"),
        (&taken, true, "cannot be attached"),
    ] {
        let error = match is_fenced {
            true => client.attach_fenced(lease).await.err(),
            false => client.attach(lease).await.err(),
        };
        let error = lease_error(error.unwrap());
        let is_kind = matches!(error, LeaseError::Kind { kind, .. } if kind == lease.kind());
        assert!(is_kind && error.to_string().contains(says), "{error}");
    }
    assert_eq!(sent(&client), before);
}

/// Tries every text that lacks the beginning, the end or one character, or has another character at one place.
#[tokio::test]
async fn a_damaged_text_is_refused() {
    let Some(nodes) = five() else { return };
    let client = client(&nodes).await;
    let guard = client.acquire(["k", "l"]).options(long()).await.unwrap();
    let token = guard.token().to_string();
    let text = guard.detach().await.unwrap().to_string();
    let refused = |damaged: &str| {
        let error = damaged.parse::<Lease>().expect_err(damaged);
        assert!(!error.to_string().contains(&token), "a lease is a secret: {error}");
        error
    };
    for cut in 0..text.len() {
        refused(&text[..cut]);
        refused(&text[cut + 1..]);
        for other in ["", "0", "x", ",", "\n"] {
            let edited = [&text[..cut], other, &text[cut + 1..]].concat();
            if edited != text {
                refused(&edited);
            }
        }
    }
    assert_eq!(refused(""), LeaseTextError::Empty);
    assert_eq!(refused(&text.replace(",ttl_ms=120", ",ttl_ms=121")), LeaseTextError::Damaged);
    assert!(format!("{text}\n").parse::<Lease>().is_ok());
}
