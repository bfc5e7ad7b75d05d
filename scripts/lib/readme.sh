# shellcheck shell=bash
# Parts of both READMEs that commands write: what is between the lines <!-- NAME:begin --> and <!-- NAME:end -->.

READMES=(README.md README.zh-CN.md)

# check_markers NAME: one pair of markers in each README, before minutes are spent.
check_markers() {
  local file begin="<!-- $1:begin -->" end="<!-- $1:end -->"
  for file in "${READMES[@]}"; do
    [[ $(grep -xF -e "$begin" -e "$end" "$file" | tr -d '\n') == "$begin$end" ]] ||
      die 2 "$file needs the two lines '$begin' and '$end', once and in this order."
  done
}

# write_block NAME FILE: puts the file's text between the markers.
write_block() {
  local readme
  for readme in "${READMES[@]}"; do
    text=$(<"$2") begin="<!-- $1:begin -->" end="<!-- $1:end -->" awk '
      $0 == ENVIRON["end"] { inside = 0 }
      !inside { print }
      $0 == ENVIRON["begin"] { inside = 1; print ENVIRON["text"] }' "$readme" >"$DATA/readme.new"
    cat "$DATA/readme.new" >"$readme" # not `mv`, which would take the owner and mode of the new file along
    rm "$DATA/readme.new"
  done
}
