//! The SQL of users.

use rand::Rng;
use rand::distr::Alphanumeric;

use super::phone::Phone;
use crate::connection::mysql::Database;
use crate::connection::row::from_row;
use crate::connection::server_error::is_duplicate;
use crate::error::Error;
use crate::session::CurrentUser;

/// Characters after `user_` in a new user's name.
const NICK_LENGTH: usize = 10;

from_row! { CurrentUser: id, nick_name, icon }

const SELECT_USER: &str = "SELECT CAST(id AS SIGNED) AS id, COALESCE(nick_name, '') AS nick_name, \
     COALESCE(icon, '') AS icon FROM tb_user";

/// Users in the database.
#[derive(Clone)]
pub struct UserStore {
    db: Database,
}

impl UserStore {
    /// A store on this database.
    pub fn new(db: Database) -> Self {
        UserStore { db }
    }

    /// The user with this id.
    pub async fn find(&self, id: i64) -> Result<Option<CurrentUser>, Error> {
        let sql = format!("{SELECT_USER} WHERE id = ?");
        let query = sqlx::query_as(&sql).bind(id);
        Ok(self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?)
    }

    /// The user with this phone, registered now if there is none. Two sign-ins of a new phone at
    /// once make one user: the unique key on the phone decides.
    pub async fn find_or_register(&self, phone: &Phone) -> Result<CurrentUser, Error> {
        if let Some(user) = self.find_by_phone(phone).await? {
            return Ok(user);
        }
        let nick: String = rand::rng()
            .sample_iter(Alphanumeric)
            .take(NICK_LENGTH)
            .map(char::from)
            .collect();
        let nick = format!("user_{}", nick.to_lowercase());
        let insert = sqlx::query("INSERT INTO tb_user (phone, nick_name) VALUES (?, ?)");
        let insert = insert.bind(phone.as_str()).bind(&nick);
        match self.db.write(async |c| insert.execute(c).await).await {
            Ok(_) => {}
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(error.into()),
        }
        self.find_by_phone(phone)
            .await?
            .ok_or_else(|| Error::Internal("a user just registered is not there".to_owned()))
    }

    async fn find_by_phone(&self, phone: &Phone) -> Result<Option<CurrentUser>, Error> {
        let sql = format!("{SELECT_USER} WHERE phone = ?");
        let query = sqlx::query_as(&sql).bind(phone.as_str());
        Ok(self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?)
    }
}
