//! Keeps of one statement's reply what the limits allow, and counts the rest.
//!
//! Rows are kept whole or not at all. A value's bytes are held only after its length was found to fit.

use super::channel::Channel;
use super::message::{Fields, Pieces, lossy};
use super::render::push_hex;
use super::result::{CELL_BYTES, affected};
use super::types::{self, TypeCache};
use super::{Cell, Column, Notice, Origin, ResultLimits, ResultSet, Shape, TruncatedBy, WireError};
use crate::model::limits::{NOTICES_MAX, VALUE_BYTES_MAX};

/// The longest description of columns that is read, in bytes: ten times that of the most columns Postgres returns.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 2 << 20;
/// The longest column name, in bytes, with room for what a rename of the limit at build time would allow.
const NAME_BYTES_MAX: usize = 256;

/// A result in the making.
#[derive(Debug)]
pub(super) struct Collector {
    limits: ResultLimits,
    set: ResultSet,
    /// Rows that have come, kept or not.
    seen: u64,
    /// What the kept rows cost.
    bytes: u64,
    /// Whether the byte budget is used up.
    full: bool,
    /// Whether the rows are COPY data, and then whether in binary form.
    copied: Option<bool>,
}

impl Collector {
    pub(super) fn new(limits: ResultLimits) -> Self {
        // A value that could never fit is left out alone, and not its row with it.
        let budget = usize::try_from(limits.bytes_max).unwrap_or(usize::MAX);
        let value_bytes_max = limits.value_bytes_max.min(VALUE_BYTES_MAX).min(budget);
        let limits = ResultLimits { value_bytes_max, ..limits };
        Self { limits, set: ResultSet::default(), seen: 0, bytes: 0, full: false, copied: None }
    }

    /// Keeps nothing: for statements whose rows do not matter.
    pub(super) fn nothing() -> Self {
        Self::new(ResultLimits { rows_max: 0, bytes_max: 0, value_bytes_max: 0 })
    }

    /// Takes a RowDescription.
    pub(super) fn describe(&mut self, body: &[u8]) -> Result<(), WireError> {
        self.expect_no_description()?;
        let malformed = WireError::Protocol("a description of columns is malformed");
        let mut rest = Pieces(body);
        let count = rest.u16().ok_or_else(|| malformed.clone())?;
        let mut columns = Vec::new();
        for position in 1..=u32::from(count) {
            columns.push(column(&mut rest, position).ok_or_else(|| malformed.clone())?);
        }
        if !rest.0.is_empty() {
            return Err(malformed);
        }
        self.set.columns = columns;
        Ok(())
    }

    /// Takes a CopyOutResponse: lines become rows of one column.
    pub(super) fn describe_copy(&mut self, binary: bool) -> Result<(), WireError> {
        self.expect_no_description()?;
        let (type_name, type_oid) = if binary { ("bytea", 17) } else { ("text", 25) };
        self.copied = Some(binary);
        self.set.columns = vec![Column {
            name: "copy_data".into(),
            type_name: type_name.into(),
            type_oid,
            position: 1,
            origin: None,
            shape: Shape::Text,
        }];
        Ok(())
    }

    /// Rows that were kept have the columns that were described before them.
    fn expect_no_description(&self) -> Result<(), WireError> {
        match self.set.columns.is_empty() && self.seen == 0 {
            true => Ok(()),
            false => Err(WireError::Protocol("the columns of a result are described twice or too late")),
        }
    }

    /// Takes a DataRow of `bytes` bytes off the channel.
    pub(super) async fn row(&mut self, channel: &mut Channel, bytes: usize) -> Result<(), WireError> {
        if !self.wants_row() {
            return channel.skip(bytes).await;
        }
        let mut left = bytes;
        let count = number::<2>(channel, &mut left).await?;
        if usize::try_from(count).ok() != Some(self.set.columns.len()) {
            return Err(WireError::Protocol("a row has not as many values as there are columns"));
        }
        let mut row = Vec::with_capacity(self.set.columns.len());
        let mut cost = 0;
        for _ in 0..count {
            let length = number::<4>(channel, &mut left).await?;
            // −1 says NULL; all but lengths of 31 bits are above what is left.
            let null = length == u32::MAX;
            let length = if null { 0 } else { usize::try_from(length).unwrap_or(usize::MAX) };
            left = left.checked_sub(length).ok_or(WireError::Protocol("a value is longer than its row"))?;
            match self.cell(channel, null, length, &mut cost).await? {
                Some(cell) => row.push(cell),
                None => return channel.skip(left).await,
            }
        }
        if left != 0 {
            return Err(WireError::Protocol("a row is longer than its values"));
        }
        self.keep(row, cost);
        Ok(())
    }

    /// Takes a CopyData of `bytes` bytes off the channel. The server sends one for each line.
    pub(super) async fn copy_data(&mut self, channel: &mut Channel, bytes: usize) -> Result<(), WireError> {
        let Some(binary) = self.copied else { return Err(WireError::Protocol("COPY data comes unannounced")) };
        if !self.wants_row() {
            return channel.skip(bytes).await;
        }
        let mut cost = 0;
        let Some(cell) = self.cell(channel, false, bytes, &mut cost).await? else { return Ok(()) };
        let cell = match cell {
            Cell::Text(text) if binary => Cell::Text(hex(text.as_bytes())),
            Cell::Bytes(bytes) if binary => Cell::Text(hex(&bytes)),
            Cell::Text(mut text) => {
                text.truncate(text.strip_suffix('\n').unwrap_or(&text).len());
                Cell::Text(text)
            }
            Cell::Null | Cell::Bytes(_) | Cell::Omitted { .. } => cell,
        };
        self.keep(vec![cell], cost);
        Ok(())
    }

    /// Takes a notice.
    pub(super) fn notice(&mut self, fields: Fields) {
        if self.set.notices.len() < NOTICES_MAX {
            self.set.notices.push(fields.into());
        } else {
            self.set.notices_dropped += 1;
        }
    }

    /// Takes the notices out: for statements that failed.
    pub(super) fn into_notices(self) -> Vec<Notice> {
        self.set.notices
    }

    /// Ends the result. `tag` is there where the server got to the statement's end.
    pub(super) fn finish(mut self, tag: Option<String>) -> ResultSet {
        let returns_rows = !self.set.columns.is_empty();
        self.set.affected = tag.as_deref().and_then(|t| affected(t, returns_rows));
        self.set.rows_total = (returns_rows && tag.is_some()).then_some(self.seen);
        self.set.command_tag = tag;
        self.set
    }

    /// Counts a row that has come, and says whether it may be kept.
    fn wants_row(&mut self) -> bool {
        self.seen += 1;
        if self.full {
            return false;
        }
        if self.seen > self.limits.rows_max {
            self.cut(TruncatedBy::Rows);
            return false;
        }
        true
    }

    /// Takes a value of `length` bytes off the channel; `None` where it does not fit the budget, and is taken too.
    async fn cell(
        &mut self,
        channel: &mut Channel,
        null: bool,
        length: usize,
        cost: &mut u64,
    ) -> Result<Option<Cell>, WireError> {
        let omitted = length > self.limits.value_bytes_max;
        let bytes = u64::try_from(length).unwrap_or(u64::MAX);
        *cost += CELL_BYTES + if omitted { 0 } else { bytes };
        if self.bytes + *cost > self.limits.bytes_max {
            self.full = true;
            self.cut(TruncatedBy::Bytes);
            channel.skip(length).await?;
            return Ok(None);
        }
        if null {
            return Ok(Some(Cell::Null));
        }
        if omitted {
            channel.skip(length).await?;
            return Ok(Some(Cell::Omitted { bytes }));
        }
        let cell = Cell::from_bytes(channel.want(length).await?);
        channel.done(length);
        Ok(Some(cell))
    }

    fn keep(&mut self, row: Vec<Cell>, cost: u64) {
        let omitted = row.iter().filter(|c| matches!(c, Cell::Omitted { .. })).count();
        if omitted > 0 {
            self.set.values_omitted += u64::try_from(omitted).unwrap_or(u64::MAX);
            self.cut(TruncatedBy::ValueBytes);
        }
        self.bytes += cost;
        self.set.rows.push(row);
    }

    fn cut(&mut self, by: TruncatedBy) {
        self.set.truncated = true;
        if matches!(self.set.truncated_by, None | Some(TruncatedBy::ValueBytes)) {
            self.set.truncated_by = Some(by);
        }
    }
}

impl ResultSet {
    /// Names the types of the columns, and returns those that are not known.
    pub(super) fn name_types(&mut self, cache: &TypeCache) -> Vec<u32> {
        let mut missing = Vec::new();
        for column in &mut self.columns {
            let known = cache.get(column.type_oid);
            if known.is_none() && !missing.contains(&column.type_oid) {
                missing.push(column.type_oid);
            }
            let info = known.unwrap_or_else(|| types::unknown(column.type_oid));
            column.type_name = info.name;
            column.shape = info.shape;
        }
        missing
    }
}

/// Reads one field of a RowDescription.
fn column(rest: &mut Pieces<'_>, position: u32) -> Option<Column> {
    let name = lossy(rest.cstr()?, NAME_BYTES_MAX);
    let table_oid = rest.u32()?;
    let number = rest.i16()?;
    let type_oid = rest.u32()?;
    let (_size, _modifier, _format) = (rest.i16()?, rest.i32()?, rest.i16()?);
    let origin = (table_oid != 0).then_some(Origin { table_oid, column: number });
    Some(Column { name, type_name: String::new(), type_oid, position, origin, shape: Shape::Text })
}

/// Takes a number of `N` bytes off a message that has `left` bytes left.
async fn number<const N: usize>(channel: &mut Channel, left: &mut usize) -> Result<u32, WireError> {
    *left = left.checked_sub(N).ok_or(WireError::Protocol("a row is cut off"))?;
    let number = channel.want(N).await?.iter().fold(0, |n, &b| n << 8 | u32::from(b));
    channel.done(N);
    Ok(number)
}

/// Writes bytes as `bytea` is written.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    push_hex(bytes, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::engine::postgres::net::Stream;

    const LIMITS: ResultLimits = ResultLimits { rows_max: 3, bytes_max: 60, value_bytes_max: 40 };

    fn data_row(values: &[Option<&[u8]>]) -> BytesMut {
        let mut body = BytesMut::new();
        body.put_u16(u16::try_from(values.len()).unwrap());
        for value in values {
            body.put_i32(value.map_or(-1, |v| i32::try_from(v.len()).unwrap()));
            body.put_slice(value.unwrap_or_default());
        }
        body
    }

    fn description(columns: u16) -> BytesMut {
        let mut body = BytesMut::new();
        body.put_u16(columns);
        for _ in 0..columns {
            body.put_slice(b"c\0");
            body.put_slice(&[0; 18]);
        }
        body
    }

    /// Feeds rows of `columns` columns to a collector.
    async fn collect(columns: u16, rows: &[BytesMut]) -> Result<ResultSet, WireError> {
        collect_within(LIMITS, columns, rows).await
    }

    async fn collect_within(limits: ResultLimits, columns: u16, rows: &[BytesMut]) -> Result<ResultSet, WireError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(Stream::Unix(ours));
        let mut collector = Collector::new(limits);
        collector.describe(&description(columns))?;
        for row in rows {
            theirs.write_all(row).await.unwrap();
            collector.row(&mut channel, row.len()).await?;
        }
        Ok(collector.finish(Some("SELECT 1".into())))
    }

    fn texts(set: &ResultSet) -> Vec<Vec<Option<&str>>> {
        set.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect()
    }

    #[tokio::test]
    async fn rows_are_kept_up_to_the_limit_and_the_rest_is_counted() {
        let row = || data_row(&[Some(b"a")]);
        let set = collect(1, &[row(), row(), row()]).await.unwrap();
        assert_eq!((texts(&set).len(), set.truncated, set.rows_total), (3, false, Some(3)));
        let set = collect(1, &[row(), row(), row(), row()]).await.unwrap();
        assert_eq!((texts(&set).len(), set.truncated_by, set.rows_total), (3, Some(TruncatedBy::Rows), Some(4)));
    }

    #[tokio::test]
    async fn rows_are_whole_when_the_budget_ends() {
        let row = || data_row(&[Some(b"0123456789"), Some(b"0123456789")]);
        let set = collect(2, &[row(), row(), row()]).await.unwrap();
        assert_eq!(texts(&set), [[Some("0123456789"); 2]; 2]);
        assert_eq!((set.truncated_by, set.rows_total), (Some(TruncatedBy::Bytes), Some(3)));
    }

    #[tokio::test]
    async fn nulls_are_not_free() {
        let row = data_row(&[None; 13]);
        let set = collect(13, &[row]).await.unwrap();
        assert_eq!((set.rows.len(), set.truncated_by), (0, Some(TruncatedBy::Bytes)));
    }

    #[tokio::test]
    async fn a_value_that_is_too_long_is_left_out_of_its_row() {
        let set = collect(3, &[data_row(&[Some(&[b'x'; 41]), None, Some(b"")])]).await.unwrap();
        assert_eq!(set.rows, [[Cell::Omitted { bytes: 41 }, Cell::Null, Cell::Text(String::new())]]);
        assert_eq!((set.truncated_by, set.values_omitted), (Some(TruncatedBy::ValueBytes), 1));
    }

    #[tokio::test]
    async fn a_value_over_the_whole_budget_does_not_take_its_row_along() {
        let limits = ResultLimits { value_bytes_max: 1000, ..LIMITS };
        let row = data_row(&[Some(&[b'x'; 61]), Some(b"id")]);
        let set = collect_within(limits, 2, &[row]).await.unwrap();
        assert_eq!(set.rows, [[Cell::Omitted { bytes: 61 }, Cell::Text("id".into())]]);
    }

    #[tokio::test]
    async fn rows_that_lie_are_refused() {
        let mut long = data_row(&[Some(b"abc")]);
        long.put_u8(0);
        let mut claims = data_row(&[Some(b"abc")]);
        claims[2] = 0x7f;
        let mut negative = data_row(&[Some(b"abc")]);
        negative[2] = 0xff;
        for row in [long, claims, negative, data_row(&[]), data_row(&[None, None]), BytesMut::from(&[0][..])] {
            let found = collect(1, &[row]).await;
            assert!(matches!(found, Err(WireError::Protocol(_))), "{found:?}");
        }
    }

    #[test]
    fn descriptions_that_lie_are_refused() {
        let mut more = description(2);
        more[1] = 3;
        let mut fewer = description(2);
        fewer[1] = 1;
        for body in [more, fewer, BytesMut::new()] {
            let found = Collector::nothing().describe(&body);
            assert!(matches!(found, Err(WireError::Protocol(_))), "{found:?}");
        }
    }

    #[test]
    fn notices_are_bounded() {
        let mut collector = Collector::nothing();
        for _ in 0..NOTICES_MAX + 5 {
            collector.notice(Fields::default());
        }
        let set = collector.finish(None);
        assert_eq!((set.notices.len(), set.notices_dropped), (NOTICES_MAX, 5));
    }
}
