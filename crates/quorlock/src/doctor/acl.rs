//! How the least rights are given to a user.

/// Stands for the user's name.
pub(super) const USER: &str = "USER";

/// The command that makes [`USER`] one who may lock with keys behind `prefix`, and nothing else.
pub(super) fn line<'a>(prefix: &str, rights: impl Iterator<Item = &'a str>) -> String {
    let rights: Vec<&str> = rights.collect();
    let keys = quoted(&format!("~{}*", escaped(prefix)));
    format!("ACL SETUSER {USER} reset on '>PASSWORD' {keys} {}", rights.join(" "))
}

/// A prefix as a pattern that matches itself.
fn escaped(prefix: &str) -> String {
    let mut escaped = String::with_capacity(prefix.len());
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// As `redis-cli` takes one word that may hold anything.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "~*:._-/{}".contains(c);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        let rights = ["+get", "+set"];
        assert_eq!(
            line("locks:", rights.into_iter()),
            "ACL SETUSER USER reset on '>PASSWORD' ~locks:* +get +set"
        );
        assert!(line("a*", rights.into_iter()).contains(r#" "~a\\**" "#));
    }
}
