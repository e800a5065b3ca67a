//! Folders of images.

use crate::check::{Case, Content, check};
use crate::make::png;

fn grey(level: u8) -> Vec<u8> {
    png(2, 3, 0, &[level, 1, 2, 3, 4, 5])
}

/// Two classes of four grey images of 2 × 3, below what there is already.
fn two_classes(case: Case) -> Case {
    const NAMES: [&str; 8] = [
        "f/cat/0.png",
        "f/dog/1.png",
        "f/cat/2.png",
        "f/dog/3.png",
        "f/cat/4.png",
        "f/dog/5.png",
        "f/cat/6.png",
        "f/dog/7.png",
    ];
    (0..8_u8).fold(case, |case, index| case.beside(NAMES[usize::from(index)], grey(10 * index)))
}

#[test]
fn damaged_and_odd_images() {
    let more = |name: &'static str, content: Content, parts| {
        two_classes(Case::refused("f/", Content::Folder, parts).beside(name, content))
    };
    let bytes = |name, bytes: &[u8], parts| more(name, Content::Bytes(bytes.to_vec()), parts);
    let flipped = |at: usize| {
        let mut image = grey(1);
        let at = image.len() - at;
        image[at] ^= 0xff;
        image
    };
    // A header that claims more than there is.
    let claims = |rows, columns| png(rows, columns, 0, &[0; 6]);
    let mut trained = vec![
        Case::trains("f/", Content::Folder, &["1 other files are left out"]).beside("f/cat/notes.md", "x"),
        Case::trains("f/", Content::Folder, &["8 images of the shape [1, 2, 3]"]).beside("f/.hidden/x.png", "x"),
        Case::trains("f/", Content::Folder, &["9 images of the shape [3, 2, 3]"])
            .beside("f/dog/x.png", png(2, 3, 2, &[9; 18])),
        Case::trains("f/", Content::Folder, &["9 images"]).beside("f/dog/x.png", Content::LinkTo("1.png")),
        Case::trains("f/", Content::Folder, &["9 images"]).beside("f/dog/x.JPG", grey(3)),
    ];
    trained = trained.into_iter().map(two_classes).collect();
    let mut cases = vec![
        bytes("f/cat/x.png", b"", IMAGE),
        bytes("f/cat/x.png", b"GIF89a", IMAGE),
        bytes("f/cat/x.jpg", b"<!DOCTYPE html>", IMAGE),
        bytes("f/cat/x.png", &grey(1)[..8], IMAGE),
        bytes("f/cat/x.png", &grey(1)[..20], IMAGE),
        bytes("f/cat/x.png", &grey(1)[..45], IMAGE),
        bytes("f/cat/x.png", &flipped(20), IMAGE),
        bytes(
            "f/cat/x.png",
            &claims(2, 4),
            &["f/cat/x.png", "found 2 rows × 4 columns, expected 2 × 3, as in f/cat/0.png"],
        ),
        bytes("f/cat/x.png", &claims(u32::MAX / 2, u32::MAX / 2), &["f/cat/x.png"]),
        bytes("f/cat/x.png", &claims(0, 3), IMAGE),
        bytes("f/cat/x.jpg", b"\xff\xd8", IMAGE),
        bytes("f/cat/x.jpg", &[b"\xff\xd8\xff\xdb".as_slice(), &[0xff; 100]].concat(), IMAGE),
        bytes("f/x.png", &grey(1), &["f/x.png: found an image beside the classes, expected images in folders"]),
        bytes("f/cat/deeper/x.png", &grey(1), &["f/cat/deeper: found a folder within a class"]),
        more("f/cat/x.png", Content::LinkTo("x.png"), &["cannot read f/cat/x.png"]),
        more("f/cat/x.png", Content::LinkTo("nowhere"), &["cannot read f/cat/x.png"]),
        more("f/loop", Content::LinkTo("."), &["f/loop/", "found a folder within a class"]),
        more("f/cat/x.png", Content::Pipe, &["f/cat/x.png: found a pipe, a socket or a device"]),
        more(
            "f/cat/x.png",
            Content::Sparse(grey(1), 6 << 30),
            &["f/cat/x.png: found 6442450944 bytes, expected at most"],
        ),
        more("f/cat/x.png", Content::Folder, &["f/cat/x.png: found a folder within a class"]),
        Case::refused("f/", Content::Folder, &["found no image, expected folders of .png"]),
        Case::refused("f/", Content::Folder, &["found no image"]).beside("f/cat/notes.md", "x"),
        Case::untrainable("f/", Content::Folder, &["found the label `cat` in every row"])
            .beside("f/cat/a.png", grey(1)),
        // 20 images of 268 million values each.
        (0..20).fold(
            Case::refused("f/", Content::Folder, &["images of the shape", "expected at most 2147483648"]),
            |case, index| {
                let name: &'static str = Box::leak(format!("f/cat/{index}.png").into_boxed_str());
                case.beside(name, claims(16_384, 16_384))
            },
        ),
    ];
    cases.extend(trained);
    check(Some(two_classes(Case::trains("f/", Content::Folder, &["8 images of the shape [1, 2, 3]"]))), cases);
}

const IMAGE: &[&str] = &["f/cat/x.", "expected a whole PNG or JPEG image"];
