"""A CSV of path,label."""

import numpy as np
import pytest
from pictures import class_folder, quietly, said, saved


@pytest.fixture
def images(tmp_path):
    return class_folder(tmp_path / "images", {"a": 6, "b": 6})


def lines(count=6, form="images/{name}/{i:03}.png,{name}"):
    return [form.format(name=name, i=i) for name in "ab" for i in range(count)]


def written(tmp_path, rows, name="table.csv", encoding="utf-8"):
    (tmp_path / name).write_text("\n".join(rows) + "\n", encoding=encoding)
    return tmp_path / name


def test_a_table_gives_what_the_folder_gives(tmp_path, images):
    table = written(tmp_path, ["path,label", *lines()])
    assert quietly(table, tmp_path).fingerprint == quietly(images, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("head", "form", "name"),
    [
        ("filename;class", "images/{name}/{i:03}.png;{name}", "t.csv"),
        ("Label\tImage", "{name}\timages/{name}/{i:03}.png", "t.tsv"),
        ("id,path,weight,label", "7,images/{name}/{i:03}.png,0.5,{name}", "t.csv"),
        (None, '"images/{name}/{i:03}.png" , {name}', "t.csv"),
        ("path,label", "images\\{name}\\{i:03}.png,{name}", "t.csv"),
        ("path,label", "./images/../images/{name}/{i:03}.png,{name}", "t.csv"),
    ],
)
def test_forms_of_tables(tmp_path, images, head, form, name):
    rows = ([head] if head else []) + lines(form=form)
    if head is None:
        rows = [row.replace('" , ', '",') for row in rows]
    data = quietly(written(tmp_path, rows, name), tmp_path)
    assert data.fingerprint == quietly(images, tmp_path).fingerprint
    assert said(data, "no header line") == (head is None)


def test_absolute_paths_a_byte_order_mark_and_windows_line_ends(tmp_path, images):
    rows = ["path,label\r", *(f"{images}/{name}/{i:03}.png,{name}\r" for name in "ab" for i in range(6))]
    data = quietly(written(tmp_path, rows, encoding="utf-8-sig"), tmp_path)
    assert data.fingerprint == quietly(images, tmp_path).fingerprint


def test_commas_and_line_breaks_in_quoted_names(tmp_path):
    names = ["one, two.png", "a\nb.png", "c.png", "d.png"]
    for name in names:
        saved(tmp_path / name)
    rows = ["path,label", *(f'"{name}",{"xy"[i % 2]}' for i, name in enumerate(names)), "absent.png,x"]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert len(data.y_train) + len(data.y_test) == 4
    assert data.skipped == ((str(tmp_path / "absent.png"), "no such file, or a broken link"),)


def test_other_columns_by_name(tmp_path, images):
    rows = ["where,what,label", *lines(form="images/{name}/{i:03}.png,{name},9")]
    data = quietly(written(tmp_path, rows), tmp_path, image_column="where", label_column="what")
    assert data.classes == ("a", "b")
    with pytest.raises(ValueError, match="no column 'nope'"):
        quietly(tmp_path / "table.csv", tmp_path, image_column="nope")
    with pytest.raises(ValueError, match="which are path and label"):
        quietly(tmp_path / "table.csv", tmp_path)


def test_a_split_column(tmp_path, images):
    parts = ["train", "train", "Training", "test", "val", "valid"]
    rows = ["path,label,split"]
    rows += [f"images/{name}/{i:03}.png,{name},{parts[i]}" for name in "ab" for i in range(6)]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert said(data, "4 validation image(s)")
    no_test = quietly(written(tmp_path, [row for row in rows if not row.endswith("test")]), tmp_path)
    assert no_test.y_test.tolist() == [0, 0, 1, 1]


def test_whole_number_labels_are_in_numeric_order(tmp_path, images):
    form = "images/{name}/{i:03}.png,"
    rows = ["path,label", *(row + str(11 - i // 4) for i, row in enumerate(lines(form=form)))]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert data.classes == ("9", "10", "11")
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == [4, 4, 4]


def test_lines_without_a_label_or_a_path_are_listed(tmp_path, images):
    data = quietly(written(tmp_path, ["path,label", "images/a/000.png,", ",a", "", *lines()[1:]]), tmp_path)
    table = tmp_path / "table.csv"
    assert data.skipped == ((f"{table}, line 2", "no label"), (f"{table}, line 3", "no path"))


def test_repeated_lines_count_once_and_contradictions_are_an_error(tmp_path, images):
    data = quietly(written(tmp_path, ["path,label", *lines(), *lines()[:3]]), tmp_path)
    assert len(data.y_train) + len(data.y_test) == 12
    assert said(data, "3 line(s)")
    with pytest.raises(ValueError, match=r"'a' \(train\) in line 2, 'b' \(train\) in line 14"):
        quietly(written(tmp_path, ["path,label", *lines(), "images/a/000.png,b"]), tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no two columns"),
        (["just one column"], "no two columns"),
        (["path,label"], "names no images"),
        (["path,label,split", "images/a/000.png,a,tomorrow"], "'tomorrow'; expected train, test or val"),
        (["path,label,split", "images/a/000.png,a,train", "images/b/000.png,b,test"], "'b' is on test images alone"),
        (["path,label", '"images/a/000.png,a'], "not a table"),
    ],
)
def test_mistakes(tmp_path, images, rows, message):
    with pytest.raises(ValueError, match=message) as caught:
        quietly(written(tmp_path, rows), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_no_utf8(tmp_path, images):
    with pytest.raises(ValueError, match="UTF-8"):
        quietly(written(tmp_path, ["path,label", "Käfer.png,a"], encoding="cp1252"), tmp_path)
