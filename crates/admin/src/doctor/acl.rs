//! The `ACL SETUSER` command that creates a user with no more rights than locks need.

/// The ACL rules that let a user lock with keys that begin with `prefix`, and do nothing else.
pub(super) fn rules<'a>(prefix: &str, rights: impl Iterator<Item = &'a str>) -> String {
    let keys = quoted(&format!("~{}*", escaped(prefix)));
    std::iter::once(keys).chain(rights.map(quoted)).collect::<Vec<_>>().join(" ")
}

pub(super) fn line(user: &str, rules: &str) -> String {
    format!("ACL SETUSER {user} reset on '>PASSWORD' {rules}")
}

/// Escapes the prefix, so that it stands for itself in a glob pattern.
pub(crate) fn escaped(prefix: &str) -> String {
    let mut escaped = String::with_capacity(prefix.len());
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Quotes `word` so that it stays one word, both in a shell and at the prompt of `redis-cli`.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "+:._-/".contains(c);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.contains('\'') {
        return format!("'{word}'");
    }
    let escape = |c: char| if "\\\"$`".contains(c) { format!("\\{c}") } else { c.to_string() };
    format!("\"{}\"", word.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        let rights = ["+get", "+script|load"];
        assert_eq!(
            line("app", &rules("locks:", rights.into_iter())),
            "ACL SETUSER app reset on '>PASSWORD' '~locks:*' +get '+script|load'"
        );
        assert!(rules("a*", rights.into_iter()).starts_with(r"'~a\**' "));
        assert!(rules("o'$", rights.into_iter()).starts_with(r#""~o'\$*" "#));
    }
}
