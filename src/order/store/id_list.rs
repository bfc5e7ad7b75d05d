//! Ids as the text of an SQL `IN (…)` list. Integers only, so nothing needs to be escaped.

/// The numbers between commas; `NULL`, which equals nothing, where there are none.
pub(super) fn id_list(ids: impl IntoIterator<Item = i64>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    if ids.is_empty() { "NULL".to_owned() } else { ids.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_between_commas_and_an_empty_list_matches_nothing() {
        assert_eq!(id_list([1, -2, 3]), "1,-2,3");
        assert_eq!(id_list([]), "NULL");
    }
}
