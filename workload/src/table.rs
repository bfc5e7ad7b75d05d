//! Plain text tables with aligned columns.

/// Which side a column's text keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// Lays out `rows` under `head`; one column per head entry. Widths count characters.
pub fn render(head: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(i, (title, _))| {
            let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
            cells.chain([title.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(head).zip(&widths).map(|((cell, (_, align)), width)| {
            let fill = " ".repeat(width.saturating_sub(cell.chars().count()));
            match align {
                Align::Left => format!("{cell}{fill}"),
                Align::Right => format!("{fill}{cell}"),
            }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&head.iter().map(|(title, _)| *title).collect::<Vec<_>>());
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
        let rows =
            [vec!["naive".to_owned(), "12".to_owned()], vec!["x".to_owned(), "3".to_owned()]];
        assert_eq!(
            render(&[("name", Align::Left), ("orders", Align::Right)], &rows),
            "name   orders\n-------------\nnaive      12\nx           3\n"
        );
    }
}
