//! The line table of a code object (`co_linetable`, 3.11 and later): from a place in the code to a line.

/// The line of the instruction at byte `offset` of the code; nothing where the table gives none.
pub fn line_at(table: &[u8], first_line: u32, offset: u64) -> Option<u32> {
    let mut line = i64::from(first_line);
    let mut covered = 0u64;
    let mut at = 0usize;
    while let Some(&head) = table.get(at) {
        if head & 0x80 == 0 {
            // Not where an entry starts: the table is no table.
            return None;
        }
        at += 1;
        let (kind, units) = ((head >> 3) & 15, u64::from(head & 7) + 1);
        let has_line = kind != 15;
        match kind {
            15 => {}
            14 => {
                line = line.checked_add(signed(table, &mut at)?)?;
                for _ in 0..3 {
                    unsigned(table, &mut at)?;
                }
            }
            13 => line = line.checked_add(signed(table, &mut at)?)?,
            10..=12 => {
                line += i64::from(kind - 10);
                at += 2;
            }
            _ => at += 1,
        }
        covered += units * 2;
        if offset < covered {
            return has_line.then(|| u32::try_from(line).ok()).flatten();
        }
    }
    None
}

fn unsigned(table: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..60).step_by(6) {
        let byte = *table.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

fn signed(table: &[u8], at: &mut usize) -> Option<i64> {
    let value = unsigned(table, at)?;
    let magnitude = (value >> 1) as i64;
    Some(if value & 1 == 1 { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_entry_moves_the_line_as_it_should() {
        let table = [
            0x80 | 15 << 3,     // no line, 1 unit
            0x80 | 13 << 3 | 1, // +3, 2 units
            6,
            0x80, // short: same line, 1 unit
            0x11,
            0x80 | 11 << 3, // +1, 1 unit
            1,
            2,
            0x80 | 14 << 3, // long: -2
            5,
            0,
            1,
            1,
        ];
        let line = |offset| line_at(&table, 10, offset);
        assert_eq!(line(0), None);
        assert_eq!(
            (line(2), line(5), line(6), line(8)),
            (Some(13), Some(13), Some(13), Some(14))
        );
        assert_eq!(line(10), Some(12));
        assert_eq!(line(12), None);
    }

    #[test]
    fn a_table_of_garbage_gives_nothing() {
        assert_eq!(line_at(&[0x11, 0x22], 1, 0), None);
        assert_eq!(
            line_at(
                &[0xe8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                1,
                0
            ),
            None
        );
        assert_eq!(line_at(&[], 1, 0), None);
    }
}
