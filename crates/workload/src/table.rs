//! Plain text tables with aligned columns.

/// Lays out `rows` under `titles`; one column per title. A title that begins with `>` aligns its column right.
/// Widths count characters.
pub fn render(titles: &[&str], rows: &[Vec<String>]) -> String {
    let right: Vec<bool> = titles.iter().map(|title| title.starts_with('>')).collect();
    let titles: Vec<&str> = titles
        .iter()
        .map(|title| title.trim_start_matches('>'))
        .collect();
    let widths: Vec<usize> = titles
        .iter()
        .enumerate()
        .map(|(i, title)| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(i))
                .map(|cell| cell.chars().count());
            cells.chain([title.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[&str]| {
        let padded = cells
            .iter()
            .zip(&right)
            .zip(&widths)
            .map(|((cell, right), &width)| {
                if *right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:width$}")
                }
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&titles);
    let rule: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    text.push_str(&"-".repeat(rule));
    text.push('\n');
    for row in rows {
        text.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["naive".to_owned(), "12".to_owned()],
            vec!["x".to_owned(), "3".to_owned()],
        ];
        assert_eq!(
            render(&["name", ">orders"], &rows),
            "name   orders\n-------------\nnaive      12\nx           3\n"
        );
    }
}
