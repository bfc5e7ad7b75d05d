# shellcheck shell=bash
# Which packages and test binaries have a test of a given name: read from the sources, without building anything.

# members: the folders of the workspace's packages, a line each.
members() { tr '\n' ' ' <Cargo.toml | grep -o ' members = \[[^]]*\]' | grep -o '"[^"]*"' | tr -d '"'; }

# package_name NAME: of the package with this name, in this folder or in a folder of this name; status 1 where there is no such package.
package_name() {
  local folder name
  for folder in $(members); do
    name=$(sed -n '/^name = /{ s/.*"\(.*\)".*/\1/p; q }' "$folder/Cargo.toml")
    [[ $1 != "$folder" && $1 != "${folder##*/}" && $1 != "$name" ]] || { echo "$name"; return; }
  done
  return 1
}

# test_scope NAME PACKAGE: flags for `cargo test`, a line each, that build no more than what has a test with NAME in
# its path. Where none is found (a macro may make it), everything in PACKAGE or the workspace.
test_scope() {
  local name=$1 package=$2 folder found="" targets
  for folder in $(members); do
    [[ -z $package || $(package_name "$folder") == "$package" ]] || continue
    targets=$(cd "$folder" && test_targets "$name")
    [[ -z $targets ]] || found+="--package=$(package_name "$folder")"$'\n'$targets$'\n'
  done
  if [[ -n $found ]]; then sort -u <<<"${found%$'\n'}"; else echo "${package:+--package=}${package:---workspace}"; fi
}

# test_targets NAME: in a package's folder, the flags of its targets that have such a test.
test_targets() {
  local library="" of_binary=""
  [[ ! -f src/lib.rs ]] || library=1
  [[ ! -f src/main.rs ]] || of_binary=$(sed -nE 's/^mod ([a-z0-9_]+);.*/\1/p' src/main.rs)
  # shellcheck disable=SC2016 # a program for awk
  { find src tests -name '*.rs' 2>/dev/null || true; } | sort | xargs -d '\n' -r awk \
    -v wanted="$name" -v library="$library" -v of_binary=" ${of_binary//$'\n'/ } main " '
    # A file begins: its target, and the path of its module.
    FNR == 1 {
      file = FILENAME
      sub(/\.rs$/, "", file)
      parts = split(file, part, "/")
      first = part[1] == "src" ? 2 : 3
      if (part[1] == "tests") target = "--test=" part[2]
      else target = library && !index(of_binary, " " part[2] " ") ? "--lib" : "--bins"
      module = ""
      for (i = first; i <= parts; i++)
        if (!(i == parts && part[i] ~ /^(lib|main|mod)$/)) module = module part[i] "::"
      depth = is_test = 0
    }
    # A module within the file; it ends where something stands at its own indentation again.
    match($0, /^ *(pub(\([a-z]+\))? )?mod [a-z0-9_]+ \{/) {
      indent = match($0, /[^ ]/)
      while (depth && indent_of[depth] >= indent) depth--
      name = $0
      sub(/ \{.*/, "", name); sub(/.* /, "", name)
      indent_of[++depth] = indent
      name_of[depth] = name
    }
    /#\[([a-z_]+::)*test[](]/ { is_test = 1 }
    is_test && match($0, /fn [A-Za-z0-9_]+/) {
      name = substr($0, RSTART + 3, RLENGTH - 3)
      indent = match($0, /[^ ]/)
      while (depth && indent_of[depth] >= indent) depth--
      path = module
      for (i = 1; i <= depth; i++) path = path name_of[i] "::"
      if (index(path name, wanted)) print target
      is_test = 0
    }' | sort -u
}
